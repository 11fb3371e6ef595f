"""What is measured of Gemini on real ranks: a small GPT-2, killed and recovered."""
