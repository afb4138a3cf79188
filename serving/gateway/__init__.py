"""A gateway: requests to several replicas go to the one that a router chooses, and stream back."""
