"""The client that a statement runs for."""

from typing import NamedTuple


class Caller(NamedTuple):
    """A client; its reads must include the transaction `min_transaction` (0: any will do)."""

    address: str = ""
    client_id: int | None = None  # of a client with a valid token
    min_transaction: int = 0
    sees_clients: bool = False  # in changes; only with a token

    @property
    def name(self) -> str:
        """The id of a client with a valid token, the address of any other, for logs and limits."""
        return self.address if self.client_id is None else str(self.client_id)


NOBODY = Caller()  # the service itself
