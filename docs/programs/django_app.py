"""Answer with Django, streaming and blocking; Claude Code ends with the client.

pip install django uvicorn
python django_app.py 8000
curl -N "localhost:8000/ask?q=Hello"        in another terminal
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import secrets
import sys

import uvicorn
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.urls import path

import pilothouse as ph
from pilothouse import sync as blocking

settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY=secrets.token_hex(),
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    USE_TZ=True,
)
agent = ph.Agent(tools=[], max_turns=1, timeout=120)


async def ask(request: HttpRequest) -> StreamingHttpResponse:
    query = agent.query(request.GET["q"])
    return StreamingHttpResponse(query.text_stream(), content_type="text/plain")


def answer(request: HttpRequest) -> JsonResponse:
    """Django runs this view in a thread: here, use the blocking API."""
    options = agent.options
    result = blocking.query(request.GET["q"], options).result()
    if result.error is not None:
        return JsonResponse({"error": str(result.error)}, status=502)
    return JsonResponse({"text": result.text, "cost_usd": result.cost_usd})


urlpatterns = [path("ask", ask), path("answer", answer)]
application = get_asgi_application()

if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8000
    uvicorn.run(application, port=port, lifespan="off")
