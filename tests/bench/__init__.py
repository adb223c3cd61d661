"""Speed and memory as ratios to limits measured in the same run; nothing here is a test."""
