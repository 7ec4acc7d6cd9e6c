"""Shadow evaluation: a candidate answers a sample of logged requests, unseen by users, and is monitored for differences."""
