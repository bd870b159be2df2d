"""One schedule sent by several processes of this machine."""
