"""What the suite runs on built-in options, run on options from outside: behind `nocap check`."""
