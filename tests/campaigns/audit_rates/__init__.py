"""How often ``harness audit`` makes a firm claim of an honest table, and how many true slips it finds."""
