"""Who may use the API: clients, their tokens and scopes; knows neither HTTP nor movies."""
