"""Moving a sharded model into another sharding: this library beside what people use today."""
