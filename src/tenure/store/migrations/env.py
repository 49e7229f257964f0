"""Alembic's entry: runs the migrations on the connection that `tenure.store.migrate` hands over."""

from alembic import context

from tenure.store.tables import metadata

options = context.config.attributes
context.configure(
    connection=options.get("connection"),
    dialect_name=options.get("dialect_name"),
    output_buffer=options.get("output_buffer"),
    as_sql=options.get("connection") is None,
    starting_rev=options.get("starting_rev"),
    target_metadata=metadata,
    version_table="tenure_schema",
    literal_binds=options.get("connection") is None,
    # The caller has begun the transaction and holds the lock in it.
    transaction_per_migration=False,
)
context.run_migrations()
