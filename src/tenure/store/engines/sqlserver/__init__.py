"""SQL Server 2019 and Azure SQL."""
