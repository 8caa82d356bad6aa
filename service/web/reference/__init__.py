"""The OpenAPI document, and the page that renders it."""
