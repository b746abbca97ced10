"""The command `batch`: files of OpenAI's Batch API, answered by the routes of the server."""
