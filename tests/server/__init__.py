"""The server's modules, one test module each."""
