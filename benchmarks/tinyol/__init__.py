"""What a device learns from a stream: another person's walking, new words one by one."""
