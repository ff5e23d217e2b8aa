"""The schedulers: what wakes sessions when their time has come."""
