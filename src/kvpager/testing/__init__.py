"""Contract suites and fakes for our tests and third parties'."""
