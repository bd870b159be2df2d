"""From a planned reply to an HTTP response: submit it, send what comes, and free it when the client leaves."""
