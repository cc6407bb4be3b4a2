"""What turnd costs, as ratios to floors that the same run measures."""
