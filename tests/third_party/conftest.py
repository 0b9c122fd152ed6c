"""The distributions here are not installed: their own tests run where `test_distributions.py` installs them."""

collect_ignore_glob = ["mmspec-*"]
