// What happens when the page of a folder is read.
switchTheme();
watchTables();
begin();
