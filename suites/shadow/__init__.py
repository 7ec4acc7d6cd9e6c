"""Shadow evaluation: a candidate answers a sample of logged requests that nobody is shown, and is watched for a change."""
