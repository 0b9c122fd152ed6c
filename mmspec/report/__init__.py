"""What a run did and what it cost."""
