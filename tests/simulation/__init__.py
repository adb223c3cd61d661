"""Many clients and one server in one thread, with sockets that are cranked by hand."""
