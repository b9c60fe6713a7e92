"""`devrun report`: runs as read from their folders (`runs`), their figures (`digest`),
and these as data (`data`) and as a page (`html`)."""
