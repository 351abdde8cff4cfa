"""Reports: an answer as one HTML page that opens offline, and its figures as files."""
