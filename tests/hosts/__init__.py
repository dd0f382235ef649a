"""Stoker on real hosts: containers, volumes, SSH. The real parts come from Debian's packages."""
