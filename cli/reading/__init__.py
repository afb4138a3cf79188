"""What commands read from a store; none of them creates one."""
