"""The command line: `reap collect ENV_ID --frames N --out DIR`.

main      words -> options -> exit code
collect   the run: env, policy, collector, folder, table, picture
options   the command line's options
policies  --policy to a policy;  exported  the .pt2 form;  operators  those it may call
folder    frames on disk
signals   Ctrl-C
report    the closing table;  plot  the picture
"""
