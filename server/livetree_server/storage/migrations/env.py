"""What Alembic runs: the revisions, on the connection and in the transaction of its caller."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
