"""A right program for each of the 24 problems of x01_small_functions: what follows its head. And one that solves none."""

from __future__ import annotations

RIGHT = {
    "count_vowels": """
    return sum(c in 'aeiou' for c in text.lower())
""",
    "second_largest": """
    s = sorted(set(numbers))
    return s[-2] if len(s) > 1 else None
""",
    "is_palindrome": """
    s = [c.lower() for c in text if c.isalpha()]
    return s == s[::-1]
""",
    "running_sum": """
    out, total = [], 0
    for n in numbers:
        total += n
        out.append(total)
    return out
""",
    "digits_sum": """
    return sum(map(int, str(abs(number))))
""",
    "interleave": """
    out = []
    for i in range(max(len(first), len(second))):
        out += first[i:i+1] + second[i:i+1]
    return out
""",
    "fahrenheit": """
    return celsius * 9 / 5 + 32
""",
    "longest_word": """
    return max(text.split(), key=len, default='')
""",
    "count_words": """
    out = {}
    for w in text.lower().split():
        out[w] = out.get(w, 0) + 1
    return out
""",
    "clamp": """
    if low > high:
        raise ValueError('low above high')
    return min(max(value, low), high)
""",
    "transpose": """
    return [list(c) for c in zip(*rows)]
""",
    "gcd": """
    while b:
        a, b = b, a % b
    return a
""",
    "caesar": """
    out = ''
    for c in text:
        if c.isascii() and c.isalpha():
            b = ord('a') if c.islower() else ord('A')
            c = chr((ord(c) - b + shift) % 26 + b)
        out += c
    return out
""",
    "flatten": """
    out = []
    for one in nested:
        out += solution(one) if isinstance(one, list) else [one]
    return out
""",
    "is_prime": """
    return number > 1 and all(number % d for d in range(2, int(number ** 0.5) + 1))
""",
    "remove_duplicates": """
    return list(dict.fromkeys(items))
""",
    "mean": """
    if not numbers:
        raise ValueError('empty')
    return sum(numbers) / len(numbers)
""",
    "roman": """
    values = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
    signs = 'M CM D CD C XC L XL X IX V IV I'.split()
    out = ''
    for value, sign in zip(values, signs):
        out += sign * (number // value)
        number %= value
    return out
""",
    "merge_sorted": """
    return sorted(first + second)
""",
    "title_case": """
    return ' '.join(w[:1].upper() + w[1:].lower() for w in text.split())
""",
    "fibonacci": """
    out, a, b = [], 0, 1
    for _ in range(n):
        out.append(a)
        a, b = b, a + b
    return out
""",
    "balanced": """
    pairs, open_ = {')': '(', ']': '[', '}': '{'}, []
    for c in text:
        if c in '([{':
            open_.append(c)
        elif c in pairs and (not open_ or open_.pop() != pairs[c]):
            return False
    return not open_
""",
    "group_by_length": """
    out = {}
    for w in words:
        out.setdefault(str(len(w)), []).append(w)
    return out
""",
    "rotate": """
    if not items:
        return []
    k = places % len(items)
    return items[-k:] + items[:-k] if k else items[:]
""",
}
WRONG = "    return 0 if True else None\n"
