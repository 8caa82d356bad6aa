"""PostgreSQL for any resource."""

# https://www.postgresql.org/docs/current/datatype-numeric.html
MAX_INTEGER = 2**31 - 1
MAX_BIGINT = 2**63 - 1
