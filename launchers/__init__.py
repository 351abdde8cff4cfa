"""One module per training framework: what it can express, its rules, how a plan is written for it."""
