"""`di-store dashboard`: a read-only web page about the stores of this machine. It needs the extra `[dashboard]`.

`watch.StoreWatch` looks at the stores every `watch.SECONDS` in a thread of its own, without waiting for locks, and
keeps an hour of history. Pages are HTML made here from its last look, with charts as inline SVG (`charts`). The
browser's only script fetches the page again and replaces its `<main>`. `gate.Gate` stands before all of it.

A page is a function in a module `page_*.py`, and a template in `templates/`. To add one:

1. The module has ``ROUTES = [Route("/items", items)]``, and `app.ROUTES` adds it up.
2. The function is plain (Starlette runs it in a thread): ``def items(request: Request) -> Response``. It reads the
   names in the query (``?store=…&table=…``: names may hold any characters, so they never lie in the path) with
   ``asked(request, "table")``, takes facts from ``watch_of(request)``, and returns
   ``page(request, "items.html", title=…, store=…, table=…, **facts)``.
3. The template extends ``layout.html`` and fills ``{% block main %}``. The page is fetched again every two seconds;
   ``refresh=0`` among the facts turns that off.
4. `layout.STORE_PAGES` or `layout.TABLE_PAGES` names it, for the navigation; ``link("items", store=…, table=…)`` is its
   address, in Python and in templates.

What a template prints is cut to `layout.MOST_TEXT` characters, freed of control characters, and escaped, so a page need
not care about hostile values; only `charts` makes markup. ``watch.attached(name)`` is a handle for calls that read
items: keep it for one request only, because it holds the store. A `StoreError` that a page raises becomes a page with
that one line. Inline scripts, handlers and styles are refused by the browser: use classes of `static/style.css`.
"""
