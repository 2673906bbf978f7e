"""What a page is: parameters, what it measures, shows and concludes, here and from records."""
