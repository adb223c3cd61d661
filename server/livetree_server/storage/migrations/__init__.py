"""The database's revisions, in Alembic's terms; `livetree_server.storage.migrate` runs them."""
