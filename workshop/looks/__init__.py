"""What a browser and the rules of axe find on the pages that people see."""
