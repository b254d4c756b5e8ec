"""What makes the project a package of the system: units, manual pages, the Debian package. Not installed with it."""
