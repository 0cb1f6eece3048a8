"""What the kits of tests outside of a cluster share."""
