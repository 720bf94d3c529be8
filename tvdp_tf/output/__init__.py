"""What programs write: folders, pictures, tables; one module for each job."""
