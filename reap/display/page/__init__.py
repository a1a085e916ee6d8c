"""The page of a running collector in the browser; its modules need the packages of the extra `page`.

server   a thread with an HTTP server on 127.0.0.1, as long as the loop runs
app      who may send requests, and the answers: the page, its numbers, and their changes as server-sent events
feed     the numbers once a second, and those who wait for them
history  the points of the charts, thinned out as they become many
report   a collector's counts as JSON
page.*   the page itself
"""
