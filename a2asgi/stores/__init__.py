"""The stores: durable memory with transactions, each in a room of its own."""
