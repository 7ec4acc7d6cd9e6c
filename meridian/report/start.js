// What happens when the report of a run is read.
switchTheme();
listHeads();
chooseMap();
startGraphs();
startAttention();
startPrompts();
begin();
