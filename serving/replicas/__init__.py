"""Replicas of a server that Ray starts, restarts, drains and scales; each has its own HTTP port.

Ray is the control plane only: requests go from the gateway to a replica over HTTP.
"""
