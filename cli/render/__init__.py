"""Records -> text and pictures. Pure: nothing is read or printed here."""
