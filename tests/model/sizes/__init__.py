"""Frame sizes of whole clusters in virtual time."""
