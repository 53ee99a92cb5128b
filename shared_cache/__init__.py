"""What the pools share: Redis, mailboxes, lanes, records, latents, embeddings, objects."""
