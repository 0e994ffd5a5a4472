"""What the documents hold of recorded reports and of the program's output, written between markers."""
