"""What corosync's libraries say to their server over libqb, and what they expect of it. Nothing serves them yet."""
