"""A server for one model: what it can be asked, many questions in one batch, HTTP before it, and a page."""
