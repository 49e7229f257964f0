"""Alembic's entry point: runs the migrations on the connection that `tenure.store.migrate` provides. If there is no
connection, writes the SQL of the migrations to the output buffer.
"""

from alembic import context

from tenure.store.migrations.functions import install_functions
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
    # With this style SQLAlchemy does not double percent signs. A driver would undo the doubling, but a script is not
    # sent to a driver.
    dialect_opts={"paramstyle": "named"},
    # The caller has begun the transaction and taken the migration lock in it.
    transaction_per_migration=False,
)
context.run_migrations()
install_functions(context.get_context())
