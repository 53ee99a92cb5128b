"""The gateway, the page, the HTTP and socket surface and the command line."""
