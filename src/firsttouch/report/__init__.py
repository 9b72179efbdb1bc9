"""What people read: terminal tables, plain text for a mail, one HTML file, and exports for other tools."""
